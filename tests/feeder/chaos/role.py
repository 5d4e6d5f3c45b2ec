"""The main module of every process of a round; see `roles`, which is imported before it is
forked.
"""

import sys

import roles

roles.main(sys.argv[1:])
