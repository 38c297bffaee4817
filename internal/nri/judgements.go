package nri

import "sync"

// judgements are those that have not ended. A container may stop meanwhile: the engine's list of
// running ones is old by its turn, and a judgement may take longer than the engine waits. What such
// a judgement holds would stay held, because no event of the container follows.
type judgements struct {
	mu sync.Mutex
	of map[string]*judgement // by the container's id
}

type judgement struct {
	count   int  // of the judgements of one container
	stopped bool // the container has stopped since the first of them began
}

func (j *judgements) begin(ids ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, id := range ids {
		if j.of[id] == nil {
			j.of[id] = &judgement{}
		}
		j.of[id].count++
	}
}

func (j *judgements) end(ids ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, id := range ids {
		if j.of[id].count--; j.of[id].count == 0 {
			delete(j.of, id)
		}
	}
}

// stop records that those containers have stopped that match.
func (j *judgements) stop(matches func(id string) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, its := range j.of {
		its.stopped = its.stopped || matches(id)
	}
}

func (j *judgements) stopped(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	its := j.of[id]
	return its != nil && its.stopped
}
