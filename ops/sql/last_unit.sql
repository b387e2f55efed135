-- The higher of the two, since collations order letters and digits differently.
greatest($3::text || '#fff-fff', $3::text || '#999-999')
