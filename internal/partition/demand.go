package partition

import "slices"

// Demand is a worker's partition demand for a consumer.
type Demand struct {
	Count int    `json:"count"`
	Key   string `json:"key,omitempty"` // the name of the key; empty: the aggregate's id
}

// Single is the demand for one partition.
var Single = Demand{Count: 1}

// Number returns the wanted number of partitions of a consumer. A number that an operator has
// fixed applies, if it is above 0. Otherwise the number applies that all workers with the code
// demand. old reports whether some worker has no partition support or runs another library:
// the number is then 1. 0 means that the units stay, for one of two reasons. The demands
// differ, as in a deployment, or the keys differ and the consumer is not split yet.
func Number(fixed int, split, old bool, demands []Demand) (count int) {
	switch {
	case fixed > 0:
		count = fixed
	case old:
		count = 1
	case len(demands) > 0 && !slices.ContainsFunc(demands, func(w Demand) bool { return w.Count != demands[0].Count }):
		count = demands[0].Count
	}
	if count > 1 && !split && (len(demands) == 0 || slices.ContainsFunc(demands, func(w Demand) bool { return w.Key != demands[0].Key })) {
		return 0
	}
	return count
}
