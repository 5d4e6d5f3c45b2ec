"""A page that shows a feeder or a cluster live: who writes, what tables hold, who reads, who waits.

    status, once a second ---> frame ---> History (ten minutes) ---> the page, which polls

One thread asks for the status; all viewers get the same bytes. The page is one file without
anything from elsewhere (page.html), and can change nothing.
"""

from async_loader.observe.dashboard.server import Dashboard
from async_loader.public_names import set_public_names

__all__ = ["Dashboard"]
set_public_names(globals())
