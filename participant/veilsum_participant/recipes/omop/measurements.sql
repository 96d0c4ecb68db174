-- OMOP CDM 5.4: one row a measurement, in the units named here; a measurement in another unit is left out:
--   hba1c: 3004410 in % (8554), hemoglobin A1c in blood
--   creatinine: 3016723 in mg/dL (8840), creatinine in serum or plasma
--   systolic: 3004249 in mmHg (8876), systolic blood pressure
--   bmi: 3038553 in kg/m2 (9531), body mass index
WITH @persons,
@measured
SELECT
    measured.person_id,
    measured.kind,
    measured.value,
    CAST(EXTRACT(YEAR FROM measured.measurement_date) AS float8) - persons.year_of_birth AS age
FROM measured
JOIN persons ON persons.person_id = measured.person_id
