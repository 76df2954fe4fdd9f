"""`python -m worker doctor`: whether what the service needs is there and set as it should be, and what to do if not."""
