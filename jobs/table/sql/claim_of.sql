-- Claims the first rows of the list.
WITH {picked {among}}, {claimed}
