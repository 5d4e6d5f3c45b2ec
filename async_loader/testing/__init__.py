"""Fakes and conformance tests for users of the protocols.

Import the module that you need from here.
"""
