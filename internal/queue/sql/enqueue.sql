{enqueue_given}, {enqueue_new true}
