"""GPU kernels of the fused statistics.

Forward, a program owns a few receivers and a block of features, walks their slots four at a time
and keeps running statistics, with differences taken from the running mean. All receivers of one
block of features come before the next block, so that the columns of x they read stay in cache.
Backward, a program owns a few senders and walks their outgoing edges: the gradient of a message is

    A_i + B_i·(m − c_i) + C_i·w_j + (gradient of max or min, where this edge was it)

with rows A, B, C computed once for every receiver. c_i is 0, or the receiver's mean where that is
so far from 0 that A and B·m would cancel; the last bit of B_i says which. Rows of more than SEGMENT
slots are cut: each segment is a program of its own, and a last kernel merges the segments of a row
in order. No atomics, so results repeat to the bit.
"""

from pna.ops.triton.gradients import backward as backward
from pna.ops.triton.statistics import forward as forward
