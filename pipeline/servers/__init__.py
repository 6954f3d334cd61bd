"""What a server does with a model: one folder for each server, behind one protocol (protocol.py) and one registry."""
