"""What we test with, shipped: suites for those who write stores, engines and tools."""
