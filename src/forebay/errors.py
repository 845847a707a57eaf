"""Every exception that Forebay raises on purpose.

* ForebayError
  x StartupError      a command or a pool cannot begin: one sentence, exit status 2
    + SettingsError   a flag, variable or file says something that cannot be meant
    + DirectoryError  a disk directory is missing, unsafe, foreign or taken
      - MediumError   what a directory is on fails or is full: a pool serves without it

Nothing else is raised across a layer: below start-up, a failure is a value (`Miss`, `Dropped`).
"""


class ForebayError(Exception):
    """The root of the tree."""


class StartupError(ForebayError):
    """A command or pool cannot begin; the message is one sentence that says what to do."""


class SettingsError(StartupError):
    """A setting is unknown, malformed or contradicts another."""


class DirectoryError(StartupError):
    """A disk directory cannot be used as it is."""


class MediumError(DirectoryError):
    """A disk directory is as it should be, but what it is on fails, is full or is read-only."""
