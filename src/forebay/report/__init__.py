"""Reports as single HTML files: charts, tables and a page that needs nothing from the network."""
