"""State folders of agents of each release, with what their readers found in them.

``python -m tests.state_files VERSION FOLDER`` keeps a copy of a state folder, with guests and settings, in a
folder of its version. ``expected.json`` there has the content as the readers of that release parsed it. Later
readers may find more, but not less.
"""
