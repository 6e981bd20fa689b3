"""What to read: readers and the data sets that come with the package."""
