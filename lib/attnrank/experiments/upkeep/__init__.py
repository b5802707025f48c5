"""What serves the tables themselves: verification, cost, copies of data at hand."""
