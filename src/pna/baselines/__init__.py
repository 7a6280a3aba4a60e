"""Operators of the layers that PNA is compared with: attention (GAT), gates (GatedGCN), sums."""
