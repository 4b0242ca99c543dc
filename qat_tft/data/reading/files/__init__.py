"""Files here and in object stores: which ones a path means, how each is opened, what tells that it has changed."""
