"""GPU kernels of the fused statistics.

Forward: a program owns a few receivers and a block of features. It walks their slots four at a time
and keeps running statistics, with deviations taken from the running mean. All receivers of one
block of features come before the next block, so that the columns of x being read stay in cache.

Backward: a program owns a few senders and walks their outgoing edges. The gradient with respect to
a message is

    A_i + B_i·(m − c_i) + C_i·w_j + (gradient of max or min, if this edge is the argmax or argmin)

Rows A, B and C are computed once per receiver. c_i is 0, or the receiver's mean if that is so far
from 0 that A and B·m would cancel; the last bit of B_i says which.

Rows of more than SEGMENT slots are split: each segment has its own program, and a last kernel
merges the segments of a row in order. There are no atomics, so results are bitwise reproducible.
"""

from pna.ops.triton.gradients import backward as backward
from pna.ops.triton.statistics import forward as forward
