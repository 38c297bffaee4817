# compare.awk: reads results in TAP, of bats and of crun's tests. With count it prints how many tests there are, pass, fail and were skipped; else the tests whose
# results in the files of dir1 are not those of the other ones: file, name, both results. Tests of the list expected must be there.
BEGIN {
  while (expected && (getline line < expected) > 0) {
    split(line, words, "\t")
    order[++tests] = numbered("", words[1] "\t" words[2])
    all[order[tests]] = 1
  }
}
# numbered tells apart tests of one name in one file.
function numbered(list, test) { return ++times[list, test] > 1 ? test " (" times[list, test] ")" : test }
function base(path) { sub(/.*\//, "", path); sub(/\.tap$/, "", path); return path }
/^(not )?ok [0-9]+ / {
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
}
END {
  if (count) { print tests + 0, counted["pass"] + 0, counted["fail"] + 0, counted["skip"] + 0; exit }
  for (i = 1; i <= tests; i++) {
    test = order[i]
    a = test in first ? first[test] : "absent"
    b = test in second ? second[test] : "absent"
    if (a != b || a == "absent") print test "\t" a "\t" b
  }
}
