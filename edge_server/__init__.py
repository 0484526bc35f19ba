"""The edge tier: owns a neighbourhood of devices."""
