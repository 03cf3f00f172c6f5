"""What never arrived: asks the providers what they sent, and sees to it that the ledger gets it."""
