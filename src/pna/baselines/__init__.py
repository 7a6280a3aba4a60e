"""Operators of the baseline layers: attention (GAT), gates (GatedGCN), and sums over neighbours."""
