"""One server against another: started, loaded alike, compared; the demo is the smallest such."""
