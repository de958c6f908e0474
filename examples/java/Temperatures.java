import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

public class Temperatures {
    record Reading(String city, double celsius) {
        double fahrenheit() {
            return celsius * 9 / 5 + 32;
        }
    }

    public static void main(String[] args) {
        var readings = List.of(new Reading("Oslo", -3.5), new Reading("Nairobi", 24), new Reading("Lima", 19.5));
        System.out.println(readings.stream()
                .filter(r -> r.celsius() > 0)
                .map(r -> String.format(Locale.ROOT, "%s %.1f°F", r.city(), r.fahrenheit()))
                .collect(Collectors.joining(", ")));
    }
}
