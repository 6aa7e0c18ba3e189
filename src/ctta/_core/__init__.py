"""What every method stands on. Private: the public names are in `ctta` and `ctta.methods`."""
