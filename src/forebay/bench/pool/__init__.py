"""`forebay bench pool --dram`: a running pool, over its socket."""
