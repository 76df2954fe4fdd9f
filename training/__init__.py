"""How the small demonstration model is made, from text and free voices to a checkpoint: see README.md beside this."""
