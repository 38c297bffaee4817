# compare.awk: reads results in TAP, of bats and of crun's tests. A result is pass, fail, "refused (CODE)" for a failure whose # lines have such a
# message of gpuledger's, or "skip (REASON)". With count it prints how many tests there are, pass, fail, were refused and skipped. With unpassed it
# prints the tests that did not pass: file, name, result; and a file, without a name, that has not one result for each test of its plan. With skips
# it prints how many tests of what files were skipped why, and the files whose plan is empty. Else it prints the tests of such a list whose results
# in the files of dir1 are not those of the other ones: file, name, both results. Each must be in one of them, and a file of the list whole in both.
BEGIN {
  while (list && (getline line < list) > 0) {
    split(line, words, "\t")
    if (words[2] == "") { whole[words[1]] = 1; continue }
    order[++tests] = words[1] "\t" words[2]
    all[order[tests]] = listed[order[tests]] = 1
  }
}
# numbered tells apart tests of one name in one file.
function numbered(list, test) { return ++times[list, test] > 1 ? test " (" times[list, test] ")" : test }
function base(path) { sub(/.*\//, "", path); sub(/\.tap$/, "", path); return path }
function side(path) { return dir1 != "" && index(path, dir1) == 1 ? 1 : 2 }
function state(where, file) { return (where, file) in complete ? "complete" : "incomplete" }
{ sub(/\r$/, "") }
/^1\.\.[0-9]+/ { plan[FILENAME] = substr($0, 4) + 0; planned[FILENAME] = 1 }
/^(not )?ok [0-9]+ / {
  results[FILENAME]++
  result = /^not/ ? "fail" : "pass"
  name = $0
  sub(/^(not )?ok [0-9]+ (- )?/, "", name)
  if (match(name, / # ?(skip|SKIP)/)) {
    reason = substr(name, RSTART + RLENGTH)
    name = substr(name, 1, RSTART - 1)
    sub(/^[ :]+/, "", reason)
    gsub(/\t/, " ", reason)
    result = reason == "" ? "skip" : "skip (" reason ")"
  }
  sub(/ # timeout.*/, "", name)
  sub(/ in [0-9]+ms$/, "", name)
  test = numbered(FILENAME, base(FILENAME) "\t" name)
  if (!(test in all)) order[++tests] = test
  all[test] = 1
  where = side(FILENAME)
  got[where, test] = result
  next
}
# The lines of a test that fails come after its result. The first refusal is what it met.
/^#.*gpuledger: refused \([a-z-]+\)/ {
  if (test == "" || base(FILENAME) != substr(test, 1, index(test, "\t") - 1) || got[where, test] != "fail") next
  match($0, /refused \([a-z-]+\)/)
  got[where, test] = substr($0, RSTART, RLENGTH)
}
END {
  for (i = 1; i < ARGC; i++)
    if (planned[ARGV[i]] && results[ARGV[i]] + 0 == plan[ARGV[i]]) complete[side(ARGV[i]), base(ARGV[i])] = 1
  if (count) {
    for (i = 1; i <= tests; i++) {
      split(got[2, order[i]], words, " ")
      counted[words[1]]++
    }
    print tests + 0, counted["pass"] + 0, counted["fail"] + 0, counted["refused"] + 0, counted["skip"] + 0
    exit
  }
  if (skips) {
    for (i = 1; i <= tests; i++) {
      result = got[2, order[i]]
      if (result !~ /^skip/) continue
      split(order[i], words, "\t")
      key = words[1] ": " (result == "skip" ? "(no reason)" : substr(result, 7, length(result) - 7))
      if (!times[key]++) keys[++n] = key
    }
    for (i = 1; i <= n; i++) print times[keys[i]] " of " keys[i]
    for (i = 1; i < ARGC; i++) if (planned[ARGV[i]] && plan[ARGV[i]] == 0) print "all of " base(ARGV[i]) ": its plan is empty"
    exit
  }
  if (unpassed) {
    for (i = 1; i <= tests; i++) if (got[2, order[i]] != "pass") print order[i] "\t" got[2, order[i]]
    for (i = 1; i < ARGC; i++) if (state(2, base(ARGV[i])) != "complete") print base(ARGV[i]) "\t\tincomplete"
    exit
  }
  for (i = 1; i <= tests; i++) {
    test = order[i]
    split(test, words, "\t")
    if (!(test in listed) && !(words[1] in whole)) continue
    a = (1, test) in got ? got[1, test] : "absent"
    b = (2, test) in got ? got[2, test] : "absent"
    if (a != b || a == "absent") print test "\t" a "\t" b
  }
  for (file in whole)
    if (state(1, file) != "complete" || state(2, file) != "complete") print file "\t\t" state(1, file) "\t" state(2, file)
}
