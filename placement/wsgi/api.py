"""``placement.wsgi.api:application``: importing this module starts the service.

Web servers look the application up in the module's dictionary, so it has to be
there when the import is done.
"""

from placement.wsgi import init_application

application = init_application()
