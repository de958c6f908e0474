package shop;

import java.util.LinkedHashMap;
import java.util.Map;

class Basket {
    private final Map<String, Integer> cents = new LinkedHashMap<>();

    void add(String item, int price) {
        cents.merge(item, price, Integer::sum);
    }

    @Override
    public String toString() {
        int total = cents.values().stream().mapToInt(Integer::intValue).sum();
        return String.join(" and ", cents.keySet()) + ": " + total / 100 + "." + total % 100;
    }
}
