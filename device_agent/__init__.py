"""The device tier: owns data and personal state, trains. One agent hosts 1..n devices."""
