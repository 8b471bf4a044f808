# Doxygen's filter for a page: links from the page's folder become links from the top of the sources, which Doxygen finds, without the
# heading that they name, which it does not; those to other files become their words.
BEGIN {
  folder = ARGV[1]
  sub(/.*\/include\//, "include/", folder)
  if (folder !~ /^include/) folder = ""
  sub(/[^\/]*$/, "", folder)
}
{
  rest = $0
  line = ""
  while (match(rest, /\[[^][]*\]\([^(): ]+\)/)) {
    link = substr(rest, RSTART, RLENGTH)
    line = line substr(rest, 1, RSTART - 1)
    rest = substr(rest, RSTART + RLENGTH)
    words = substr(link, 2, index(link, "](") - 2)
    target = folder substr(link, index(link, "](") + 2)
    sub(/(#.*)?\)$/, "", target)
    while (sub(/[^\/]+\/\.\.\//, "", target)) {}
    line = line (target ~ /^README\.md$|^include\/.*\.md$/ ? "[" words "](" target ")" : words)
  }
  print line rest
}
