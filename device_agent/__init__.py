"""The device tier: trains, and keeps the clients' data and personal state. One agent hosts one or more devices."""
