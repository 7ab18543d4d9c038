"""``placement.wsgi.api:application``: importing this module starts the service.

Web servers look up the application in the dictionary of the module, so the import has to create it.
"""

from placement.wsgi import init_application

application = init_application()
