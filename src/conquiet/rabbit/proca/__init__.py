"""The message formats of seed 004 and their encryption: what ``sync_queue`` accepts, and other consumers on request.

messages    proca:action:2 and proca:event:2, as types and checks
normalize   copies ids and decrypted personal data to where the syncer expects them
decrypt     decrypts ``personalInfo`` with the keys of a key store; ``seal`` is the reverse, for producers and tests
keystore    key stores: a file, a mapping
"""
