-- Claims the first rows that are not in the list.
WITH {picked NOT {among}}, {claimed}
