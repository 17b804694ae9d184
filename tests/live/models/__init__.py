"""Scripted model servers on loopback: one module for each protocol that an agent speaks."""
