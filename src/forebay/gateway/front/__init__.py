"""The gateway's front: requests of clients, read, passed on and answered."""
