"""A page that shows a feeder or a cluster live: who writes, what tables hold, who reads, who waits.

    the page, once a second ---> status ---> frame ---> the page, which keeps ten minutes of them

The page is one file without anything from elsewhere (page.html), and can change nothing.
"""

from async_loader.observe.dashboard.server import Dashboard
from async_loader.public_names import set_public_names

__all__ = ["Dashboard"]
set_public_names(globals())
