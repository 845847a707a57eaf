"""The remote tier: records in packs on a store that several hosts share."""
