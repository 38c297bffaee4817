# compare.awk: reads results in TAP, of bats and of crun's tests. With count it prints how many tests there are, pass, fail and were skipped. With unpassed it
# prints the tests that did not pass: file, name, result; and a file, without a name, that has fewer results than its plan says. Else it prints the tests of
# such a list whose results in the files of dir1 are not those of the other ones: file, name, both results. Each must be in one of them.
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
/^1\.\.[0-9]+/ { plan[FILENAME] = substr($0, 4) + 0; planned[FILENAME] = 1 }
/^(not )?ok [0-9]+ / {
  results[FILENAME]++
  sub(/\r$/, "")
  result = /^not/ ? "fail" : "pass"
  name = $0
  sub(/^(not )?ok [0-9]+ (- )?/, "", name)
  if (sub(/ # ?(skip|SKIP).*/, "", name)) result = "skip"
  sub(/ # timeout.*/, "", name)
  sub(/ in [0-9]+ms$/, "", name)
  test = numbered(FILENAME, base(FILENAME) "\t" name)
  if (!(test in all)) order[++tests] = test
  all[test] = 1
  if (index(FILENAME, dir1) == 1) first[test] = result; else second[test] = result
  counted[result]++
  if (unpassed && result != "pass") print test "\t" result
}
END {
  if (count) { print tests + 0, counted["pass"] + 0, counted["fail"] + 0, counted["skip"] + 0; exit }
  if (unpassed) {
    for (i = 1; i < ARGC; i++)
      if (!planned[ARGV[i]] || results[ARGV[i]] != plan[ARGV[i]]) print base(ARGV[i]) "\t\tincomplete"
    exit
  }
  for (i = 1; i <= tests; i++) {
    test = order[i]
    split(test, words, "\t")
    if (!(test in listed) && !(words[1] in whole)) continue
    a = test in first ? first[test] : "absent"
    b = test in second ? second[test] : "absent"
    if (a != b || a == "absent") print test "\t" a "\t" b
  }
}
