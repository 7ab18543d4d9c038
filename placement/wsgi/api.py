"""Has ``placement.wsgi.api:application``: an import of this module starts the service.

Web servers look up the application in the dictionary of the module, so the import has to create the
application.
"""

from placement.wsgi import init_application

application = init_application()
