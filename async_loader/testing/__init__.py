"""Fakes and conformance suites that users of the protocols may run too. Import the module that you need from here."""
