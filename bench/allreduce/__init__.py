"""Time of a whole compressed all-reduce between hosts, on links of given speeds."""
