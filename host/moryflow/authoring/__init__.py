"""What plugin authors use: call one hook chain, see what each implementation did."""
