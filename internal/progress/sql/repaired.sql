-- Finds a repair after transaction $3.
SELECT EXISTS (SELECT FROM {operations}
	WHERE consumer_name = $1::text AND operation = 'repair' AND operator = $2::text AND detail->>'transaction' = $3::text AND detail->>'from' = $4::text)
