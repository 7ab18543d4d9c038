"""State folders of agents of each release, with what their readers found in them.

``python -m tests.state_files VERSION FOLDER`` keeps a copy of a state folder, with guests and settings, in a
folder of its version. Files of parts that the agent did not use are written by the functions of the release.
``expected.json`` there has the content as the readers of that release parsed it. Later
readers may find more, but not less.
"""
