"""Who a node is: identities, the certificates that show them, and the authority that signs these."""
