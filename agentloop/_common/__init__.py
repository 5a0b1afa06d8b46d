"""What every other module may use: errors that values raise, checks of fields, names, digests, words for errors."""
