# Prints devices.csv: awk -f devices.awk. The same bytes each time and with any
# awk: the random numbers are its own, from a fixed seed.

function random(n) {
    seed = (seed * 16807) % 2147483647
    return int(seed / 2147483647 * n)
}

# One of the words in list, each as likely as the number after its colon says.
function pick(list,    parts, words, n, i, total, at) {
    n = split(list, parts, " ")
    total = 0
    for (i = 1; i <= n; i++) {
        split(parts[i], words, ":")
        total += words[2]
    }
    at = random(total)
    for (i = 1; i <= n; i++) {
        split(parts[i], words, ":")
        at -= words[2]
        if (at < 0)
            return words[1]
    }
}

BEGIN {
    seed = 20240229
    desired = "4.8.2"
    print "device_id,region,model,desired,reported"
    for (i = 1; i <= 10000; i++) {
        region = pick("eu-west:26 us-east:24 us-west:17 ap-south:15 eu-north:11 sa-east:7")
        model = pick("edge-200:45 edge-100:25 meter-3:20 cam-7:10")
        # "none" has never called home: it reports nothing
        reported = pick("4.8.2:9 4.8.1:31 4.8.0:22 4.7.3:21 4.6.0:11 4.5.1:5 none:1")
        printf "%s-%s-%05d,%s,%s,%s,%s\n", substr(model, 1, 2), region, i, region, model, desired,
            reported == "none" ? "" : reported
    }
}
